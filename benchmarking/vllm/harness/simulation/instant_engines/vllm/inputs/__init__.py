"""Ray Data looks the prompts' types up here."""
