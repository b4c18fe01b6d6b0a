"""One file per revision. Once released, a revision is never edited."""
