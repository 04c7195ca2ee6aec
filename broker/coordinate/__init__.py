"""The group and transaction coordinators of this broker, their logs and markers."""
