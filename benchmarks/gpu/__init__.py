"""Claims for a GPU: each job through the public API, beside a floor written by hand and peers where there are some."""
