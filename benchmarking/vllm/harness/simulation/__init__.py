"""A cluster of engines in simulated time: what many would do, predicted from what one and two really did."""
