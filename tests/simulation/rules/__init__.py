"""Judgement: what clients saw, and the rules that it must keep."""
