"""What the ranks of a case say to each other: to agree, and to measure their links."""
