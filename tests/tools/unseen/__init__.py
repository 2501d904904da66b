"""Correct and faulty DP-SGD trainings with which a checker can be judged. See ``catalogue``."""
