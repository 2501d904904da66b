"""What both trainers raise where training has failed by itself."""


class TrainingDiverged(ArithmeticError):
    """A model's parameters are no longer finite, so there is no last iterate to release."""
