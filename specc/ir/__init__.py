"""The intermediate representation (IR): graphs of typed tensor ops with symbolic shapes."""
