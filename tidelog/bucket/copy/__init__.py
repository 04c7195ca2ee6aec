"""`tidelog bucket copy`: a copy of a bucket in use, as of one instant."""
