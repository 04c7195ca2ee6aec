"""The coordinators of groups and transactions on this broker, their logs and their markers."""
