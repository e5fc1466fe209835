"""The blog post's figures, as published and corrected, with the claims that they make."""
