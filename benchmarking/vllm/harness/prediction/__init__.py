"""What a dataset has to gain: the block cache replayed, the feeds, the floor, the advice."""
