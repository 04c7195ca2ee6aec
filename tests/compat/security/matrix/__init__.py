"""Foreign clients by every mechanism that they have, and the errors that their users see."""
