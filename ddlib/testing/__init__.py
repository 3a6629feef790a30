"""What a plug-in's own tests need: hypothesis strategies and a dense oracle (``pip install ddlib[testing]``)."""
