"""What runs inside vLLM's worker processes: taps on decoder layers, and capture by request and token position."""
