"""Runs side by side: the plan, fresh processes, what may be compared, effects with their intervals."""
