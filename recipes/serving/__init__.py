"""A model behind HTTP: routes of OpenAI's interface, many requests in one network call."""
