"""Read the files of Hugging Face repositories: configs, tokenizers, processors, adapters."""
