"""Record batches to table rows, and back."""
