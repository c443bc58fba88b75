"""What listens to an engine's steps."""
