"""Handwritten digits with plain Keras, on one device."""

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hvdtrain.keras as hk

hk.init()
images, labels = load_digits(return_X_y=True)
x, x_val, y, y_val = train_test_split(images / 16.0, labels, stratify=labels, random_state=0)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
optimizer = hk.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
hk.fit(model, x, y, batch_size=32, validation_data=(x_val, y_val), epochs=5, verbose=2)
