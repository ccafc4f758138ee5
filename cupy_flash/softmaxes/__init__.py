"""Softmax along an axis, as a function of its own: the two algorithms that people teach."""
