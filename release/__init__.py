"""What is published: built twice, compared and checked."""
