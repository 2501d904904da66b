"""The privacy loss if every iterate is released: its cumulant generating function, and integrals along lines."""
