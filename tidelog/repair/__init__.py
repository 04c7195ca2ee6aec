"""Repair of a damaged bucket: a survey of its losses, and their acceptance.

Only losses that an operator names are accepted. The metadata log records them for ever
(`LossAccepted`, `LogEndAccepted`).
"""
