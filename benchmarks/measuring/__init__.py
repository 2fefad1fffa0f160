"""What the benchmarks of the engine share."""
