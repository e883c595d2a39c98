"""What the hardware allows: each job written by hand for its own shapes, compiled and recorded as a CUDA graph."""
