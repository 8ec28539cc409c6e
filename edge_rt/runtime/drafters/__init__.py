"""Sources of guesses, and what makes drafts of them."""
