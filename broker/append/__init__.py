"""The append path of producers' batches: produced batches and adopted batches."""
