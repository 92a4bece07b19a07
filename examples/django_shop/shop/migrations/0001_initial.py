"""As ``manage.py makemigrations`` wrote it, typed."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: list[tuple[str, str]] = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.TextField()),
                ("total", models.IntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Invoice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.TextField()),
                ("order", models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, to="shop.order")),
            ],
        ),
    ]
