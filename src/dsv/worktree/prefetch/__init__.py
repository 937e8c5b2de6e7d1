"""Small files read, hashed and compressed by further processes, ahead of the one that stores them."""
