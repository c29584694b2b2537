"""The HTTP gateway on every engine."""
