"""What the shop stores."""

from django.db import models


class Order(models.Model):
    customer = models.TextField()
    total = models.IntegerField()


class Invoice(models.Model):
    order = models.OneToOneField(Order, on_delete=models.CASCADE)
    number = models.TextField()
