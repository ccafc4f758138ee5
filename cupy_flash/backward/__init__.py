"""Gradients of attention: the same stages as a forward call, and as many launches as it takes."""
