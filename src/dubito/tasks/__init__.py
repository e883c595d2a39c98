"""What a posterior is good for, one task a file: posteriors and data in, a `Result` out."""
