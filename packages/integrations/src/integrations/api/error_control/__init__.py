"""Plans within a bound on the gradient's error: weights of values, the error measured, solved again."""
