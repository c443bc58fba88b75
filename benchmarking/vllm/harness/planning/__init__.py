"""The planner behind prefix-planned.py: which rows an engine is given, in which order, and when each is admitted."""
