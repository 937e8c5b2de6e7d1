"""Uploading files as packs, downloading them with every byte verified, and making commits."""
