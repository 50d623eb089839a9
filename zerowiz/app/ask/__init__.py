"""What a person is asked, and the record of what they answered."""
