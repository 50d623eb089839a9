"""What a plan rests on, in words."""
