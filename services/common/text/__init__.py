"""What an artifact's text files are: read where they are made and where they are used."""
