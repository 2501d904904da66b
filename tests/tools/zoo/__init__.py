"""Trainers for the check to judge: correct ones of many kinds, and faulty ones, each with one fault."""
