"""A way out of damage: what a bucket has lost, and how it goes on once that is accepted.

Nothing is given up unless an operator names it. What was given up stays in the metadata log for
ever (`LossAccepted`, `LogEndAccepted`).
"""
