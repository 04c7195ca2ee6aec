"""Foreign clients by every mechanism that they have, and what their users hear of a failure."""
