"""The HTTP gateway: publish, receive and read from any language, for many accounts by one login."""
