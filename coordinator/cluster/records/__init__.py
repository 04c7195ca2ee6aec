"""The metadata log's records and the other JSON documents under `cluster/`."""
