"""Generation: sampling options, prompts, drafts on the console."""
