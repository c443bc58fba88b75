"""Its engine and what it raises."""
