"""The commands of `python -m cupy_flash`: one module each, with `add_arguments` and `run`."""
