"""The Kafka wire protocol: schemas, codec and frames.

`api.py` lists the API keys and the advertised versions. Messages are declared in `schemas/`, with
the types of `fields.py`; the codec is compiled from them.
"""
