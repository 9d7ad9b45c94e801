"""The server of page and socket, and what is said over it."""
