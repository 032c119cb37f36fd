"""Running what writes: steppers over graphs and their states, and the one interface before all of them."""
